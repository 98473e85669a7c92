"""Make Triton's interpreter faster: patch `triton.language` once for each launch of a kernel.

The interpreter replaces the functions of `triton.language` when a kernel is launched, and does so again in every call
of a function inside the kernel, which takes more than half of its time. The second patch of a launch changes nothing.
"""


def patch_once_per_launch() -> None:
    """Replace the interpreter's own functions; without Triton, or with another interpreter, leave everything."""
    try:
        import triton.language as tl
        from triton.runtime import interpreter

        patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
        nothing_patched = interpreter._LangPatchScope
    except (ImportError, AttributeError):
        return
    patched: set[int] = set()

    def patch_lang(fn):
        modules = {id(value) for value in fn.__globals__.values() if value is tl or value is tl.core}
        if modules and modules <= patched:
            return nothing_patched()
        patched.update(modules)
        return patch(fn)

    def call(self, *args, **kwargs):
        patched.clear()
        try:
            return launch(self, *args, **kwargs)
        finally:
            patched.clear()

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_lang, call
