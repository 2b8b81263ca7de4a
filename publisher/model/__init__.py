"""The nouns that every package uses: job, policy, message, target, time. Pure; imports nothing of ours."""
