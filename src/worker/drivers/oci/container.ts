import type { SandboxSpec } from '../../../domain/spec/spec.ts'
import type { ImageConfig } from '../../images/image.ts'

/** A running container, with everything that an exec in it needs. */
export type Container = {
  /** The runtime's id of the container: the id of its run. */
  readonly id: string
  /** The runtime's command line up to its subcommand, including wrappers: `[...runtime, 'exec', …]`. */
  readonly runtime: readonly string[]
  readonly runtimeName: 'crun' | 'runc' | 'runsc' | 'kata-runtime'
  /**
   * The host's process id of the container's first process. With gVisor or a virtual machine, the process id of the sandbox's
   * kernel.
   */
  readonly initPid: number
  /**
   * The host's path of the container's root: in `/proc` if the host sees the first process, and otherwise the root's mount
   * point.
   */
  readonly rootPath: string
  /** The host user who is user 0 of the container. */
  readonly uidShift: number
  /** The run's folder, which stores FIFOs and process files. Only root may enter it. */
  readonly runDir: string
  readonly spec: SandboxSpec
  readonly image: ImageConfig
}
