"""PACKAGE ovserve/engine/client/tokenizer"""
