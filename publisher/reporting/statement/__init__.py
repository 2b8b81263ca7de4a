"""The statement of a period: was it all counted?"""
