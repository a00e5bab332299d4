"""Feeds facts about replicas to the engine and answers the operator on the admin port."""
