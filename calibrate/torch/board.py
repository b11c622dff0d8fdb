"""What the board says beside a point: clocks [MHz], power [W], temperature [°C], why clocks are held down, energy [J].

Read from NVML by ctypes, so no package is needed. Where the library or one of its functions is missing, that value is null.
"""

import ctypes
import statistics
import sys
import time

# nvml.h, nvmlClocksEventReason*.
REASONS = {
    0x1: "idle", 0x2: "application_clocks", 0x4: "software_power_cap", 0x8: "hardware_slowdown", 0x10: "sync_boost",
    0x20: "software_thermal", 0x40: "hardware_thermal", 0x80: "power_brake", 0x100: "display_clocks",
}
SM, MEMORY = 1, 2  # nvmlClockType_t


class Board:
    """One device of NVML, found by its UUID, else the first."""

    def __init__(self, uuid=None):
        self.missing = set()
        self.device = ctypes.c_void_p()
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
            self.nvml.nvmlInit_v2()
            by_uuid = self.nvml.nvmlDeviceGetHandleByUUID
            if uuid is None or by_uuid(f"GPU-{uuid}".encode(), ctypes.byref(self.device)) != 0:
                self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device))
        except (OSError, AttributeError) as why:
            self.nvml = None
            self._say(f"NVML: {why}: clocks, power and temperature are null")

    def _say(self, words):
        if words not in self.missing:
            self.missing.add(words)
            print(words, file=sys.stderr, flush=True)

    def _number(self, function, kind, *arguments):
        """One number of NVML, or none: said once for each function."""
        if self.nvml is None:
            return None
        value = kind()
        try:
            code = getattr(self.nvml, function)(self.device, *arguments, ctypes.byref(value))
        except AttributeError:
            self._say(f"NVML has no {function}: its value is null")
            return None
        if code != 0:
            self._say(f"{function}: error {code}: its value is null")
            return None
        return value.value

    def power_limit_w(self):
        milliwatts = self._number("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint)
        return None if milliwatts is None else milliwatts / 1000

    def highest_clock_mhz(self):
        return self._number("nvmlDeviceGetMaxClockInfo", ctypes.c_uint, SM)

    def driver(self):
        text = ctypes.create_string_buffer(96)
        try:
            if self.nvml is None or self.nvml.nvmlSystemGetDriverVersion(text, 96) != 0:
                return None
        except AttributeError:
            return None
        return text.value.decode()

    def energy_j(self):
        """Energy since the driver was loaded; it moves on every 20 to 100 ms."""
        millijoules = self._number("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong)
        return None if millijoules is None else millijoules / 1000

    def read(self):
        """One reading, with the names that points have for it."""
        milliwatts = self._number("nvmlDeviceGetPowerUsage", ctypes.c_uint)
        return {
            "power": None if milliwatts is None else milliwatts / 1000,
            "clock": self._number("nvmlDeviceGetClockInfo", ctypes.c_uint, SM),
            "memory_clock": self._number("nvmlDeviceGetClockInfo", ctypes.c_uint, MEMORY),
            "temperature": self._number("nvmlDeviceGetTemperature", ctypes.c_uint, 0),
            "reasons": self._number("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong),
        }


class Watch:
    """Readings while something is timed: at most one in 40 ms, and the energy from the first to the last."""

    def __init__(self, board):
        self.board = board
        self.readings = []
        self.next = 0.0
        self.start = (time.monotonic(), board.energy_j())

    def look(self):
        """Call while the device is busy."""
        if time.monotonic() >= self.next:
            self.readings.append(self.board.read())
            self.next = time.monotonic() + 0.04

    def summary(self):
        """Medians, every reason that was seen, and mean power from the energy counter where the window is 0.3 s or longer."""
        if not self.readings:
            self.look()
        row = {}
        for name in ("power", "clock", "memory_clock", "temperature"):
            values = [reading[name] for reading in self.readings if reading[name] is not None]
            row[name] = round(statistics.median(values), 1) if values else None
        seen = [reading["reasons"] for reading in self.readings if reading["reasons"] is not None]
        bits = 0
        for reasons in seen:
            bits |= reasons
        row["reasons"] = [name for bit, name in REASONS.items() if bits & bit] if seen else None
        seconds, energy = time.monotonic() - self.start[0], self.board.energy_j()
        known = seconds >= 0.3 and energy is not None and self.start[1] is not None
        row["mean_power"] = round((energy - self.start[1]) / seconds, 1) if known else None
        return row
