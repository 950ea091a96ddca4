"""What a trained model emits: batched search over a KV cache, teacher-forced scoring, minimum Bayes risk."""
