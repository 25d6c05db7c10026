"""The app's queries to Saleor in GraphQL: that of its webhooks, and those of its own."""

from __future__ import annotations

#: Amounts are asked for as decimal numbers. `fractionalAmount` is an Int of GraphQL, which has 32 bits, and
#: an order of 22 million rupiah would be an error.
_WHOLE = """
fragment Sum on TaxedMoney { gross { amount } net { amount } }
fragment Place on Address {
  firstName lastName companyName streetAddress1 streetAddress2 city cityArea postalCode countryArea
  country { code }
}
fragment Whole on Order {
  id number created updatedAt status origin chargeStatus displayGrossPrices languageCodeEnum userEmail
  customerNote shippingMethodName collectionPointName voucherCode
  channel { slug }
  user { id }
  billingAddress { ...Place }
  shippingAddress { ...Place }
  total { currency ...Sum }
  shippingPrice { ...Sum }
  totalCharged { amount }
  discounts { name translatedName }
  giftCards { last4CodeChars }
  lines {
    id productSku productName variantName translatedProductName translatedVariantName quantity
    quantityFulfilled
    totalPrice { ...Sum }
    undiscountedTotalPrice { ...Sum }
  }
  fulfillments { id status created trackingNumber lines { quantity orderLine { id } } }
  transactions { events { id createdAt type pspReference amount { amount } } }
  payments { transactions { id created kind isSuccess amount { amount } } }
}
"""
#: The events that the app asks for. `OrderUpdated` comes with each change but the order's creation and its
#: confirmation. Those of fulfilments say whether the customer is to hear of a parcel, except that with a
#: number.
EVENTS = {
    "OrderCreated": "ORDER_CREATED",
    "OrderConfirmed": "ORDER_CONFIRMED",
    "OrderUpdated": "ORDER_UPDATED",
    "FulfillmentCreated": "FULFILLMENT_CREATED",
    "FulfillmentApproved": "FULFILLMENT_APPROVED",
    "FulfillmentTrackingNumberUpdated": "FULFILLMENT_TRACKING_NUMBER_UPDATED",
}
_WISHES = frozenset({"FulfillmentCreated", "FulfillmentApproved"})


def _event(name: str) -> str:
    of_parcel = "fulfillment { id }" if name.startswith("Fulfillment") else ""
    wish = "notifyCustomer" if name in _WISHES else ""
    # An error in the order leaves `order` null, but not `about`.
    about = "about: order { id channel { slug } }"
    return f"    ... on {name} {{ {about} {wish} {of_parcel} order {{ ...Whole }} }}"


SUBSCRIPTION = (
    "subscription {\n  event {\n    __typename issuedAt recipient { id }\n"
    + "\n".join(map(_event, EVENTS))
    + "\n  }\n}"
    + _WHOLE
)
ORDER = "query ($id: ID!) { order(id: $id) { ...Whole } }" + _WHOLE
#: `pageInfo` comes before the orders in the answer, too.
ORDERS = (
    "query ($first: Int!, $after: String, $where: OrderWhereInput!) {\n"
    "  orders(first: $first, after: $after, where: $where, sortBy: {field: NUMBER, direction: ASC}) {\n"
    "    pageInfo { hasNextPage endCursor } edges { node { ...Whole } }\n  }\n}" + _WHOLE
)
APP = "{ app { id identifier permissions { code } } }"
