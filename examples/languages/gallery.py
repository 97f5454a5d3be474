"""A workflow whose thumbnails are made by a worker in another language: docs/guides/languages.md explains it.

palermo worker gallery --queues jobs     runs the rest
"""

import palermo


@palermo.job(name="thumbnail", queue="thumbnails")
def thumbnail(path: str) -> str:
    raise NotImplementedError("a worker in another language runs this job")


@palermo.job
def upload(path: str) -> str:
    return f"uploads/{path}"


@palermo.job
def publish(paths: list[str]) -> str:
    return f"published {', '.join(paths)}"


@palermo.workflow
def gallery(flow: palermo.Workflow, paths: list[str]) -> str:
    small = [flow.step(thumbnail, flow.step(upload, path).output) for path in paths]
    return flow.step(publish, [made.output for made in small]).output
