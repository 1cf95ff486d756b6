"""PACKAGE ovserve/engine/protocol"""
