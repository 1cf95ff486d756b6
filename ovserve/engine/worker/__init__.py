"""PACKAGE ovserve/engine/worker"""
