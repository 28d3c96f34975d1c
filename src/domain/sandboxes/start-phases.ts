/** The phases of a run's start that workers measure, and what each includes. Phases may overlap. */
export const START_PHASES = {
  image: 'The image is resolved and, unless the worker has it, pulled.',
  disk: 'The disk is created, or the existing one is mounted.',
  rootfs: 'The image is mounted over the disk. This includes the wait for both.',
  mounts: 'Volumes and other mounts are checked and pinned.',
  network: 'The network and its packet filter are created.',
  limits: 'The cgroup gets its limits.',
  output: 'The pipes of the workload’s output are made.',
  files: 'System files and patches are written, and the workload’s program is checked.',
  runtime: 'The runtime starts the container or microVM.',
  workload: 'The workload is started in the running microVM.',
} as const satisfies Record<string, string>

export type StartPhase = keyof typeof START_PHASES
export const START_PHASE_NAMES = Object.keys(START_PHASES) as readonly StartPhase[]

/** A phase as a worker measured it, in milliseconds by a clock that never jumps. */
export type MeasuredPhase = {
  readonly phase: StartPhase
  /** From the beginning of the start to the beginning of the phase. */
  readonly offset_ms: number
  readonly duration_ms: number
  /** True for the phase whose failure ended the start. */
  readonly has_failed?: true
}

/** The most phases that a report may contain for one run. */
export const MEASURED_PHASES_MAX = START_PHASE_NAMES.length

/** From the beginning of a start to the end of its last phase, in milliseconds. */
export function measuredMs(phases: readonly MeasuredPhase[]): number {
  return phases.reduce((latest, { offset_ms, duration_ms }) => Math.max(latest, offset_ms + duration_ms), 0)
}

/** The phases as an audit event shows them: the duration of each in milliseconds, and the phase that failed. */
export function describePhases(phases: readonly MeasuredPhase[]): {
  readonly start_ms: Readonly<Record<string, number>>
  readonly failed_phase?: StartPhase
} {
  const failed = phases.find(({ has_failed }) => has_failed === true)
  return {
    start_ms: Object.fromEntries(phases.map(({ phase, duration_ms }) => [phase, duration_ms])),
    ...(failed === undefined ? {} : { failed_phase: failed.phase }),
  }
}
