"""Access sets: the reads and writes of a statement, as keys and ranges that mean the same on every node.

``access_set_of(connection, sql, params)`` needs an APSW connection and no node. A worked example follows, the read set
of a join. A customer has many purchases; the statement selects one purchase and the name of its customer:

    CREATE TABLE customer(id INTEGER PRIMARY KEY, name TEXT);
    CREATE TABLE purchase(id INTEGER PRIMARY KEY, customer INTEGER, total INTEGER);
    SELECT c.name, p.total FROM purchase p JOIN customer c ON c.id = p.customer WHERE p.id = ?

SQLite compiles it to this program (``EXPLAIN``; instructions that move values and end loops are left out):

    OpenRead  0 purchase       cursor 0 is on the table purchase
    OpenRead  1 customer       cursor 1 is on the table customer
    Variable  1 -> r1          the parameter
    SeekRowid 0 r1             the row of purchase with this id: its key is known before the statement runs
    Column    0 1 -> r2        the value of purchase.customer in that row
    SeekRowid 1 r2             the row of customer with that id: its key depends on the row of purchase

``readset.analyse`` interprets the program once for each text and schema version and returns a ``ReadPlan``:

    fixed       the key of purchase whose rowid is parameter 1
    dependent   the keys of customer whose rowids are the values of purchase.customer in the rows of cursor 0

``ReadPlan.resolve`` binds the parameter. For the dependent read it runs one auxiliary query right before the statement,
``SELECT "customer" FROM main."purchase" NOT INDEXED WHERE "id" IS ?``. With purchase 2 of customer 7 the read set is
two points, each the object's name and the encoded value (``key_encoding``):

    t:purchase 2
    t:customer 7

A write to any other row of the two tables does not conflict. If the bytecode shows no narrower read, the plan names the
whole table or index, with the reason in ``ReadPlan.fallbacks``. A plan may contain too many keys, never too few.

The write set follows from the rows that SQLite's preupdate hook reports (``change_capture``): ``writeset`` turns each
row, before and after its change, into the key of the table and the entries of its indexes.

The modules: ``opcodes`` describes SQLite's instructions; ``register_values``, ``cursor_lives``, ``loop_stops`` and
``cursor_ranges`` interpret a program; ``readset`` and ``dependent_reads`` (with ``sources`` and ``lookups``) build a
plan from it and bind the plan; ``catalog`` and ``table_layout`` hold the schema; ``analysis`` keeps the
plans, and ``access_set_builder`` collects the access set of a request or an open transaction.
"""

from bedrockish.access_sets.access_set_builder import access_set_of

__all__ = ["access_set_of"]
