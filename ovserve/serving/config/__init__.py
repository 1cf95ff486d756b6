"""PACKAGE ovserve/serving/config"""
