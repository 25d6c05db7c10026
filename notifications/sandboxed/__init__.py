"""Render templates that editors write in the admin.

`rules` says what such a template may contain, `environment` compiles and renders it within limits, `trial`
renders drafts in a process of their own, and `child` is that process. Only `trial` uses Django.
"""
