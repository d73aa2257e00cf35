"""The method itself."""

import torch

from itrpipe.methods.base import Method, same_image_mask


class SmoothMethod(Method):
    """Scores every image of a batch with every caption of it."""

    means = True  # the loss is a mean over the batch

    def losses(self, model, batch, epoch):
        """tau log sum_n exp((margin + s_n - s_p) / tau), over the negatives of both directions."""
        images, texts = batch.pairs["positive"]
        scores = model.score_matrix(model.encode_images(images), model.encode_texts(texts)).float()  # [B, B]
        excess = self.settings.margin + scores - scores.diagonal()[:, None]
        reverse = self.settings.margin + scores - scores.diagonal()
        own = same_image_mask(batch, wanted=True)
        terms = [each.masked_fill(own, -1e4) / self.settings.temperature for each in (excess, reverse.T)]
        means = [torch.nn.functional.softplus(each.logsumexp(dim=1)).mean() for each in terms]
        return {"smooth": self.settings.temperature * torch.stack(means).mean()}


build = SmoothMethod
