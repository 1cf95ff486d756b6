"""PACKAGE ovserve/llm/parsing/json"""
