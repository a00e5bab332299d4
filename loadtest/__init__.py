"""Loads for a deployment, and comparisons that anyone can repeat. No part of the installed package."""
