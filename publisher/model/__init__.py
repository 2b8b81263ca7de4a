"""The nouns of every package: job, policy, message, target, time. Pure; imports nothing of ours."""
