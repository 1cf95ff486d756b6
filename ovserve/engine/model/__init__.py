"""PACKAGE ovserve/engine/model"""
