<?php
// A shop's staff and customers, in a WordPress with WooCommerce: php woocommerce.php FOLDER STEP [ORDER [VALUE]].
// Each step is a request of its own, as WooCommerce queues its webhooks at a request's end. `send` sends them.
// As the router of `php -S`, it serves the shop as if over https, which the orders API wants.

error_reporting(0);
$serves = PHP_SAPI === 'cli-server';
$folder = $serves ? getenv('LIVE_WORDPRESS') : $argv[1];
$_SERVER['HTTPS'] = 'on';
if ($serves) {
    chdir($folder);
    require $folder . '/index.php';
    return;
}
[$step, $id, $value] = [$argv[2], (int) ($argv[3] ?? 0), $argv[4] ?? ''];
$_SERVER['HTTP_HOST'] = '127.0.0.1';
$_SERVER['REQUEST_URI'] = '/';
require $folder . '/wp-load.php';
add_filter('http_request_host_is_external', '__return_true');
add_filter('http_allowed_safe_ports', fn($ports) => array_merge($ports, range(1024, 65535)));
add_filter('pre_wp_mail', '__return_true');
wp_set_current_user(1);
WC()->payment_gateways();
$order = $id ? wc_get_order($id) : null;

switch ($step) {
    case 'hooks': // VALUE is the address and the secret, with a space between
        [$address, $secret] = explode(' ', $value);
        global $wpdb;
        $wpdb->query("DELETE FROM {$wpdb->prefix}wc_webhooks WHERE name = 'orderpost'");
        $wpdb->query("DELETE FROM {$wpdb->prefix}woocommerce_api_keys WHERE description = 'orderpost'");
        foreach (['created', 'updated', 'deleted', 'restored'] as $event) {
            $hook = new WC_Webhook();
            $hook->set_props(['name' => 'orderpost', 'user_id' => 1, 'topic' => "order.$event", 'api_version' => 3]);
            $hook->set_props(['delivery_url' => $address, 'secret' => $secret, 'status' => 'active']);
            $hook->save();
        }
        $wpdb->insert($wpdb->prefix . 'woocommerce_api_keys', [
            'user_id' => 1,
            'description' => 'orderpost',
            'permissions' => 'read',
            'consumer_key' => wc_api_hash('ck_live'),
            'consumer_secret' => 'cs_live',
            'truncated_key' => 'ck_live',
        ]);
        break;
    case 'send':
        ActionScheduler::runner()->run('test');
        break;
    case 'place': // VALUE is the way to pay, or "book" for a download
        $product = new WC_Product_Simple();
        $product->set_props(['name' => 'Green tea', 'regular_price' => '24.95']);
        $product->set_props(['virtual' => $value === 'book', 'downloadable' => $value === 'book']);
        $product->save();
        $order = wc_create_order(['status' => 'pending', 'created_via' => 'checkout']);
        $order->add_product($product, 2);
        $order->set_props(['billing_first_name' => 'Ann', 'billing_email' => 'ann@example.com']);
        $order->set_payment_method($value === 'book' ? 'stripe' : $value);
        $order->calculate_totals();
        echo $order->save();
        break;
    case 'gateway': // what the way to pay does at the end of the checkout
        match ($order->get_payment_method()) {
            'bacs' => $order->update_status('on-hold'),
            'cod' => WC()->payment_gateways()->payment_gateways()['cod']->process_payment($id),
            default => $order->payment_complete('transaction'),
        };
        break;
    case 'status':
        $order->update_status($value);
        break;
    case 'refund':
        echo wc_create_refund(['order_id' => $id, 'amount' => $value])->get_id();
        break;
    case 'delete_refund': // as WC_AJAX::delete_refund
        wc_get_order((int) $value)->delete(true);
        do_action('woocommerce_refund_deleted', (int) $value, $id);
        break;
    case 'ship':
        $parcels = $order->get_meta('_wc_shipment_tracking_items') ?: [];
        $parcels[] = ['tracking_provider' => 'dhl', 'tracking_number' => $value, 'date_shipped' => (string) time()];
        $order->update_meta_data('_wc_shipment_tracking_items', $parcels);
        $order->save();
        break;
    case 'email':
        $order->set_billing_email($value);
        $order->save();
        break;
    case 'save':
        $order->save();
        break;
    case 'trash':
        $order->delete(false);
        break;
    case 'restore':
        $order->untrash();
        break;
}
