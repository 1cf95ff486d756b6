"""PACKAGE ovserve/engine/backends"""
