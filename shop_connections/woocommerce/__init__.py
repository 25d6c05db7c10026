"""WooCommerce: its webhooks, what they mean, and its orders API.

- https://developer.woocommerce.com/docs/apis/rest-api/v3/orders/
- https://github.com/woocommerce/woocommerce/blob/trunk/plugins/woocommerce/includes/class-wc-webhook.php
"""
