"""PACKAGE ovserve/llm/parsing/syntax"""
