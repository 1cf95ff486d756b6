"""PACKAGE ovserve/engine/decoding"""
