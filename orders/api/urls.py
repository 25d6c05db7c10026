"""Routes below /api/v1/ of orders and events, and of copies, which may correct an order."""

from django.urls import path

from orders.api import copies, events_in, shipments, timeline, views

urlpatterns = [
    path("events", events_in.InboundEvents.as_view(), name="events"),
    path("orders", views.Orders.as_view(), name="orders"),
    path("orders/<str:id>", views.OneOrder.as_view(), name="order"),
    path("orders/<str:id>/pay", views.PayOrder.as_view()),
    path("orders/<str:id>/confirm", views.ConfirmOrder.as_view()),
    path("orders/<str:id>/complete", views.CompleteOrder.as_view()),
    path("orders/<str:id>/cancel", views.CancelOrder.as_view()),
    path("orders/<str:id>/refund", views.RefundOrder.as_view()),
    path("orders/<str:id>/shipments", shipments.Shipments.as_view()),
    path("orders/<str:id>/shipments/<str:shipment_id>", shipments.OneShipment.as_view(), name="shipment"),
    path("orders/<str:id>/shipments/<str:shipment_id>/delivered", shipments.DeliveredShipment.as_view()),
    path("orders/<str:id>/shipments/<str:shipment_id>/returned", shipments.ReturnedShipment.as_view()),
    path("orders/<str:id>/notifications", views.OrderNotifications.as_view()),
    path("orders/<str:id>/events", views.OrderEvents.as_view()),
    path("orders/<str:id>/timeline", timeline.Timeline.as_view()),
    path("notifications/<str:id>/copies", copies.Copies.as_view()),
]
