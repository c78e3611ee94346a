"""The requirements that the dialects declare to SQLAlchemy's suite: those of SQLite, and those of bedrockish, which
differ in a few places.

The suite skips tests of undeclared requirements. Requirements that are not listed here keep its defaults.
"""

import os
import re
from typing import Any

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

NO_SCHEMAS = "ATTACH: a cluster has one database"
NO_TEMPORARY = "TEMPORARY: the suite makes TEMP objects in a transaction that changes the schema"

# Features of SQLite that SuiteRequirements does not assume of every database.
_HAS = re.findall(
    r"\w+",
    """
autocommit boolean_col_expressions check_constraint_reflection computed_columns computed_columns_reflect_persisted
computed_columns_stored computed_columns_virtual ctes ctes_with_update_delete
ctes_with_values date_historic datetime_historic datetime_literals dbapi_lastrowid deferrable_fks except_
expression_server_defaults fk_constraint_option_reflection_ondelete_noaction
fk_constraint_option_reflection_ondelete_restrict fk_constraint_option_reflection_onupdate_restrict
foreign_key_constraint_name_reflection foreign_key_constraint_option_reflection_ondelete
foreign_key_constraint_option_reflection_onupdate has_temp_table implicit_default_schema index_ddl_if_exists
indexes_with_expressions infinity_floats inline_check_constraint_reflection intersect isolation_level json_type
legacy_unconditional_json_extract non_updating_cascade nullsordering on_update_cascade
order_by_label_with_expression percent_schema_names precision_numerics_enotation_small reflect_table_options
reflects_pk_names regexp_match repeated_column_foreign_keys schemas server_defaults skip_autocommit_rollback
supports_bitwise_and supports_bitwise_not supports_bitwise_or supports_bitwise_shift table_ddl_if_exists
temp_table_names temporary_views timestamp_microseconds tuple_in unicode_ddl update_from uuid_data_type views
window_functions float_or_double_precision_behaves_generically precision_numerics_retains_significant_digits
savepoints nvarchar_types
""",
)
# Features that SuiteRequirements assumes of every database, and SQLite lacks.
_HAS_NOT = [
    "implicitly_named_constraints",
    "independent_connections",  # the suite's second schema is attached to one connection
    "parens_in_union_contained_select_w_limit_offset",
    "parens_in_union_contained_select_wo_limit_offset",
]


class Sqlite(SuiteRequirements):  # type: ignore[misc]
    """The requirements of SQLite, with Python's own sqlite3."""


for _name in _HAS:
    assert hasattr(SuiteRequirements, _name), _name
    setattr(Sqlite, _name, property(lambda _self: exclusions.open()))  # never shared: they are changed
for _name in _HAS_NOT:
    assert hasattr(SuiteRequirements, _name), _name
    setattr(Sqlite, _name, property(lambda _self: exclusions.closed()))


class Bedrockish(Sqlite):
    """The requirements of a cluster: those of SQLite, without a second schema and TEMP objects among other changes."""

    independent_connections = property(lambda _self: exclusions.open())


def _closed(why: str) -> Any:
    return property(lambda _self: exclusions.skip_if(lambda: True, why))


for _name, _why in {
    "schemas": NO_SCHEMAS,
    "cross_schema_fk_reflection": NO_SCHEMAS,
    "implicit_default_schema": NO_SCHEMAS,
    "temp_table_reflection": NO_TEMPORARY,
    "temp_table_names": NO_TEMPORARY,
    "has_temp_table": NO_TEMPORARY,
    "temporary_views": NO_TEMPORARY,
    "regexp_match": "REGEXP: pysqlite brings Python's re, which could block a node for ever",
}.items():
    setattr(Bedrockish, _name, _closed(_why))

DATABASE = "SUITE_DATABASE"
Requirements = Sqlite if os.environ.get(DATABASE) == "sqlite" else Bedrockish
