"""SGLang's scheduler: queue, admission, decode, retraction; one code for every rule set."""
