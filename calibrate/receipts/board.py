"""Power, clocks and temperature of the board, read from NVML (the driver's own library; no package needed)."""

import ctypes
import statistics
import threading

SM_CLOCK, MEMORY_CLOCK, TEMPERATURE = 1, 2, 0


class Board:
    """The board that `cuda:0` is. Whatever NVML does not say is absent."""

    def __init__(self, uuid):
        self.handle = ctypes.c_void_p()
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
            name = f"GPU-{uuid}".encode()
            if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self.handle)):
                self.nvml = None
        except (OSError, AttributeError):
            self.nvml = None

    def ask(self, function, *what):
        """One number, or none."""
        value = ctypes.c_uint()
        try:
            failed = getattr(self.nvml, function)(self.handle, *what, ctypes.byref(value))
        except AttributeError:
            return None
        return None if failed or not value.value else value.value

    def driver(self):
        """The driver's version."""
        text = ctypes.create_string_buffer(96)
        try:
            failed = self.nvml.nvmlSystemGetDriverVersion(text, 96)
        except AttributeError:
            return None
        return None if failed else text.value.decode()

    def power_limit_w(self):
        """The enforced power limit."""
        milliwatts = self.ask("nvmlDeviceGetEnforcedPowerLimit")
        return milliwatts and milliwatts / 1000

    def read(self):
        """What the board does now."""
        milliwatts = self.ask("nvmlDeviceGetPowerUsage")
        return {
            "power_w": milliwatts and milliwatts / 1000,
            "sm_mhz": self.ask("nvmlDeviceGetClockInfo", SM_CLOCK),
            "memory_mhz": self.ask("nvmlDeviceGetClockInfo", MEMORY_CLOCK),
            "temperature_c": self.ask("nvmlDeviceGetTemperature", TEMPERATURE),
        }


class Watch:
    """Reads the board ten times a second between `with` and its end; `median` is what it saw."""

    def __init__(self, board):
        self.board, self.seen, self.over = board, [], threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        while not self.over.wait(0.1):
            self.seen.append(self.board.read())

    def __enter__(self):
        if self.board.nvml:
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        if self.board.nvml:
            self.thread.join()

    def median(self):
        """The median of each figure over the readings; empty without NVML."""
        figures = {}
        for name in self.seen[0] if self.seen else []:
            values = [reading[name] for reading in self.seen if reading[name] is not None]
            if values:
                figures[name] = statistics.median(values)
        return figures
