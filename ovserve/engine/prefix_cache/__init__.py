"""PACKAGE ovserve/engine/prefix_cache"""
