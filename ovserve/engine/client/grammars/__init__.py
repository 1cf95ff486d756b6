"""PACKAGE ovserve/engine/client/grammars"""
