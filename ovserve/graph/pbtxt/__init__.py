"""PACKAGE ovserve/graph/pbtxt"""
