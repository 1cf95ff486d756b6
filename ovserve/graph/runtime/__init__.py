"""PACKAGE ovserve/graph/runtime"""
