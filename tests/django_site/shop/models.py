"""The models after the last migration."""

from django.db import models


class Author(models.Model):
    name = models.CharField(max_length=80, unique=True)
    rank = models.IntegerField(default=0)


class Book(models.Model):
    author = models.ForeignKey(Author, on_delete=models.CASCADE)
    title = models.CharField(max_length=200)
    pages = models.PositiveIntegerField(default=1)
