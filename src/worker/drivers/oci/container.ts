import type { SandboxSpec } from '../../../domain/spec/spec.ts'
import type { ImageConfig } from '../../images/image.ts'

/** A running container, with all that an exec in it needs. */
export type Container = {
  /** The runtime's own id of it. */
  readonly id: string
  /** The runtime's command line up to its subcommand, wrappers included: `[...runtime, 'exec', …]`. */
  readonly runtime: readonly string[]
  readonly runtimeName: 'crun' | 'runc' | 'runsc' | 'kata-runtime'
  /** Host process id of the container's first process; with a kernel of its own, of that kernel. */
  readonly initPid: number
  /** Where the host reads the container's files: the first process's own view of them, if it has one. */
  readonly rootPath: string
  /** The container's user 0 is this user of the host. */
  readonly uidShift: number
  /** A folder of this run's that only root may enter, for FIFOs and process files. */
  readonly runDir: string
  readonly spec: SandboxSpec
  readonly image: ImageConfig
}
