/**
 * Measures one run. It keeps files of the kernel open: opening a file takes 10 us of processor time more than reading an open
 * one (2026-11). The readings are separate because most of the cost is the kernel's.
 */
export type Meter = {
  /** The processor time since the start of the run, in nanoseconds. Null: the run has ended. */
  readCpuNs(): number | null
  /** All memory, cached files included. Null: the run has ended. */
  readMemoryBytes(): number | null
  /** Reads the rest, which costs ten times as much. */
  readRest(): RestReading
  close(): void
}

export type RestReading = {
  readonly processes: number | null
  /** The part of the memory that the kernel can drop at once: files that it cached. */
  readonly droppableBytes: number
  readonly diskBytes: number | null
  /** Since the start of the run. Null if the network can't be read. */
  readonly receivedBytes: number | null
  readonly sentBytes: number | null
}
