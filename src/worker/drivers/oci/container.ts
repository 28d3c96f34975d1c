import type { OrgId } from '../../../domain/ids.ts'
import type { SandboxSpec } from '../../../domain/spec/spec.ts'
import type { ImageConfig } from '../../images/image.ts'

/** A running container, with everything that an exec in it needs. */
export type Container = {
  /** The runtime's id of the container: the id of its run, or of the warm sandbox that the run took. */
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
   * The path of the container's root on the host. It is in `/proc` if the container's processes are host processes.
   * With gVisor or a virtual machine, it is the root's mount point.
   */
  readonly rootPath: string
  /** The id of the host user that is user 0 in the container. */
  readonly uidShift: number
  /** The folder of the container's start, which also stores process files. Only root may enter it. */
  readonly runDir: string
  /** The folder of the worker's pipes: see `mountPipeFolder`. */
  readonly pipeDir: string
  readonly orgId: OrgId
  /**
   * The files by which the processes that serve the container's commands join its second cgroup: one for each hierarchy.
   * The launcher writes to them.
   */
  readonly commandCgroups: readonly string[]
  /**
   * Begins to watch for processes that the kernel kills because memory ran out. The returned function describes the latest one.
   * It returns null if there was none since then.
   */
  readonly watchMemory: () => () => string | null
  readonly spec: SandboxSpec
  readonly image: ImageConfig
}
