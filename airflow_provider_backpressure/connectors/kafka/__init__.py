"""What sources, tasks and commands need of Kafka alike: how a client is made, and what its errors mean.

The client library is imported where it is needed: DAGs that have no Kafka parse without it.
"""
