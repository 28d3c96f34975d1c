import type { SandboxSpec } from '../../../domain/spec/spec.ts'
import type { ImageConfig } from '../../images/image.ts'

/** A running container, with everything that an exec in it needs. */
export type Container = {
  /** The runtime's id of the container: the id of its run. */
  readonly id: string
  /** The runtime's command line up to its subcommand, including wrappers: `[...runtime, 'exec', …]`. */
  readonly runtime: readonly string[]
  readonly runtimeName: 'crun' | 'runc' | 'runsc' | 'kata-runtime'
  /** The host's process id of the container's first process, or of the sandbox's own kernel. */
  readonly initPid: number
  /** Where the host reads the container's files: through the first process if the host sees it, else at the root's mount. */
  readonly rootPath: string
  /** The host user who is user 0 of the container. */
  readonly uidShift: number
  /** The run's folder, which only root may enter, for FIFOs and process files. */
  readonly runDir: string
  readonly spec: SandboxSpec
  readonly image: ImageConfig
}
