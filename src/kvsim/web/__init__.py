"""The interactive page and the small worlds of the lessons: views on simulations; cells call functions from here."""
