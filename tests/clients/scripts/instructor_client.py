"""instructor in its tool mode and its schema mode. Arguments: base URL, model. Prints JSON."""

import json
import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

base_url, model = sys.argv[1:3]


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    continent: Literal["Europe", "Asia"]
    millions: int = Field(ge=0, le=40)


def flows(mode) -> dict:
    client = instructor.from_openai(
        OpenAI(base_url=base_url + "/v1", api_key="x", max_retries=0), mode=mode)
    fields = {"model": model, "temperature": 0, "max_tokens": 96, "max_retries": 0,
              "messages": [{"role": "user", "content": "Describe Paris."}]}
    city, raw = client.chat.completions.create_with_completion(response_model=City, **fields)
    partial = list(client.chat.completions.create_partial(response_model=City, **fields))
    return {"city": city.model_dump(), "finish_reason": raw.choices[0].finish_reason,
            "partial": partial[-1].model_dump(), "num_partials": len(partial)}


print(json.dumps({m.name: flows(m) for m in (instructor.Mode.TOOLS,
                                             instructor.Mode.JSON_SCHEMA)}))
