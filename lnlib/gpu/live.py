"""Run the CUDA kernels on a GPU, through CuPy. They are compiled when they are first needed."""

import functools

from . import passes
from .listing import read_source
from .nvrtc import INSTALL, cupy_with_nvrtc, options


def available():
    """Return True if CuPy, an NVIDIA driver, a GPU and the kernel compiler NVRTC are there."""
    return _missing_part() is None


def status():
    """Return one sentence: which GPU runs the kernels, or which part is missing."""
    if missing := _missing_part():
        return missing
    runtime = backend().xp.cuda.runtime
    device = runtime.getDeviceProperties(runtime.getDevice())
    name, capability = device["name"].decode(), f"{device['major']}.{device['minor']}"
    return f"The kernels run on this machine's GPU: {name}, compute capability {capability}."


def layer_norm_forward(x, gamma, beta, eps=1e-5, *, kernel="forward", width=None):
    """Normalise the last axis on the GPU, in one launch that reads x once and writes y once.

    Parameters
    ----------
    x : cupy.ndarray, shape (..., D), float32 or float16, or uint16 with the bits of bfloat16
        C-contiguous and on the current device; D < 2**30, fewer than 2**31 rows.
    gamma, beta : cupy.ndarray, shape (D,), both dtype of x or both float32
    eps : float
        Added to the variance; rounded to float32.
    kernel : {"forward", "forward_looping"}
        "forward_looping" reads x four times: to measure what that costs.
    width : {None, 1, 4, 8}
        Entries per load; by default as many as make 16 bytes, where D and the addresses allow it.

    Returns
    -------
    y : cupy.ndarray, shape (..., D), dtype of x
    cache : Cache
        For `layer_norm_backward`. It refers to x and gamma: do not change them before.

    Raises
    ------
    RuntimeError
        If there is no GPU to run on; the message says what is missing.
    TypeError, ValueError
        If an argument has the wrong type, dtype, shape, strides or device.

    Notes
    -----
    A row with nan or inf comes out as nan, and so does one that float32 cannot square: rows whose
    variance is beyond 3e38, or var + eps below 1e-30. The arithmetic is in float32: a half type
    costs half an ulp of it when a result is stored.
    """
    return passes.forward(backend(), x, gamma, beta, eps, kernel, width)


def layer_norm_backward(dy, cache, *, kernel="backward", width=None):
    """Gradients with respect to x, gamma and beta, on the GPU.

    Parameters
    ----------
    dy : cupy.ndarray, shape (..., D), dtype of x
        C-contiguous and on the current device.
    cache : Cache
        From `layer_norm_forward` on the same device.
    kernel : {"backward", "backward_single", "backward_atomic", "backward_looping"}
        Two launches; one launch, for small inputs; atomics, whose dgamma and dbeta differ from run
        to run in the last digits and lose digits over thousands of rows; x and dy read twice, as
        "backward" does where the sums of a row do not fit on the chip. "backward" gives the same
        bits in every run on the same GPU.
    width : {None, 1, 4, 8}
        As for `layer_norm_forward`.

    Returns
    -------
    dx : cupy.ndarray, shape (..., D), dtype of x
    dgamma, dbeta : cupy.ndarray, shape (D,), dtype of gamma

    Raises
    ------
    RuntimeError, TypeError, ValueError
        As `layer_norm_forward`; ValueError also if kernel cannot hold a row of that length or
        dtype, or is for smaller inputs.
    """
    return passes.backward(backend(), dy, cache, kernel, width)


def _missing_part():
    """Return what keeps the kernels from running here, in one sentence, or None."""
    try:
        cupy = cupy_with_nvrtc()
    except RuntimeError as error:
        return f"No GPU is used: {error}."
    try:
        missing = "CUDA does not start"
        if cupy.cuda.runtime.driverGetVersion() == 0:
            return "No GPU is used: CuPy is installed, but there is no NVIDIA driver."
        cupy.cuda.runtime.getDeviceCount()  # raises an error if it is 0
        missing = f"CuPy compiles no kernel, maybe for want of CUDA's headers: {INSTALL}"
        cupy.RawKernel('extern "C" __global__ void tiny() {}', "tiny").compile()
    except Exception as error:  # each version of CuPy has its own
        return f"No GPU is used: {missing} ({error})."
    return None


@functools.cache
def backend():
    """Return CuPy as a `Backend`; RuntimeError if there is no GPU."""
    if missing := _missing_part():
        raise RuntimeError(missing)
    cupy = cupy_with_nvrtc()
    return passes.Backend(
        xp=cupy,
        empty=cupy.empty,
        address=lambda array: array.data.ptr,
        check_place=_check_place,
        run=_launch_chosen,
        resident_blocks=_resident_blocks,
        shared_limit=lambda: cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"],
    )


def _resident_blocks(chosen):
    """Ask the driver how many blocks of an Instantiation the current device holds at a time."""
    cuda, function = backend().xp.cuda, _function(_device(), chosen).kernel
    ask = cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
    multiprocessors = cuda.Device().attributes["MultiProcessorCount"]
    return multiprocessors * ask(function.ptr, chosen.threads, chosen.shared_bytes)


def _check_place(name, array):
    place = array.data.device_id
    if place != _device():
        raise ValueError(f"{name} must be on the current device, {_device()}, got device {place}")


def _launch_chosen(chosen, blocks, inputs, outputs, numbers):
    # CuPy passes arrays as pointers and NumPy's scalars as what they are: np.int32 as int, ...
    arguments = (*inputs.values(), *outputs.values(), *numbers.values())
    function = _function(_device(), chosen)
    function((blocks,), (chosen.threads,), arguments, shared_mem=chosen.shared_bytes)


def _device():
    return backend().xp.cuda.runtime.getDevice()


@functools.cache
def _function(device, chosen):
    """Compile an Instantiation for the current device, which is device."""
    name = chosen.expression
    module = backend().xp.RawModule(
        code=read_source(), options=options([name]), name_expressions=(name,)
    )
    function = module.get_function(name)
    if chosen.shared_bytes > 48 * 1024:  # more than that has to be asked for
        function.max_dynamic_shared_size_bytes = chosen.shared_bytes
    return function
