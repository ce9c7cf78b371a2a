"""Commands about what is done with mail: rules, the model, actions and approvals."""
