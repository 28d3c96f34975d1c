import { SCRIPTS_FOLDER, TOOLS_FOLDER, toolCommand } from '../../../../contract/workers/guest-tools.ts'
import { NO_RESOURCES, TOOLBOX_IN_IMAGE } from '../helper-image.ts'
import { literal } from '../literal.ts'
import type { ContainerStatus, Pod } from '../pod.ts'

/** The container that puts the toolbox and the scripts into the volumes of a Pod. */
const FILL_CONTAINER = 'fill'
const FOLDERS = { tools: '/fill/tools', scripts: '/fill/scripts' }

type FillInput = {
  readonly helperImage: string
  /** The scripts, as arguments of `fill.pl`. */
  readonly scripts: readonly string[]
  /** Whether the workload is the image's own program, which needs no toolbox in order to start. */
  readonly isOfImage: boolean
}

/** The containers of a Pod that come before the sandbox's, the volumes that they fill, and where the sandbox has those. */
export type FillContainers = {
  readonly initContainers: readonly object[]
  readonly containers: readonly object[]
  readonly volumes: readonly object[]
  readonly volumeMounts: readonly object[]
}

export const NOTHING_TO_FILL: FillContainers = { initContainers: [], containers: [], volumes: [], volumeMounts: [] }

const VOLUME_SIZE = '64Mi'
/** The sandbox can't write to them. */
const FILLED = {
  volumes: ['tools', 'scripts'].map((name) => ({ name, emptyDir: { sizeLimit: VOLUME_SIZE } })),
  volumeMounts: [
    { name: 'tools', mountPath: TOOLS_FOLDER, readOnly: true },
    { name: 'scripts', mountPath: SCRIPTS_FOLDER, readOnly: true },
  ],
}

/**
 * Makes the container that fills the volumes `tools` and `scripts`. The kubelet starts ordinary containers in their order, and the next
 * one once the postStart hook of the one before has returned. It notices the end of an init container only at its next look, up to a
 * second later. It also starts the next container after a hook has failed. An init container therefore remains where that would run a
 * program of the image.
 */
export function makeFillContainers({ helperImage, scripts, isOfImage }: FillInput): FillContainers {
  const run = (mode: 'once' | 'hold' | 'wait', ...more: readonly string[]): readonly string[] =>
    toolCommand('fill.pl', [mode, TOOLBOX_IN_IMAGE, FOLDERS.tools, ...more], TOOLBOX_IN_IMAGE)
  const fill = (mode: 'once' | 'hold'): readonly string[] => run(mode, FOLDERS.scripts, ...scripts).map(literal)
  const container = {
    name: FILL_CONTAINER,
    image: helperImage,
    imagePullPolicy: 'IfNotPresent',
    resources: NO_RESOURCES,
    securityContext: {
      allowPrivilegeEscalation: false,
      capabilities: { drop: ['ALL'] },
      readOnlyRootFilesystem: true,
    },
    volumeMounts: [
      { name: 'tools', mountPath: FOLDERS.tools },
      { name: 'scripts', mountPath: FOLDERS.scripts },
    ],
  }
  if (isOfImage) return { ...FILLED, initContainers: [{ ...container, command: fill('once') }], containers: [] }
  const lifecycle = { postStart: { exec: { command: run('wait') } } } // nothing is replaced in hooks
  return { ...FILLED, initContainers: [], containers: [{ ...container, command: fill('hold'), lifecycle }] }
}

/** The state of that container. */
export function fillStatus({ status }: Pod): ContainerStatus | undefined {
  const all = [...(status?.initContainerStatuses ?? []), ...(status?.containerStatuses ?? [])]
  return all.find(({ name }) => name === FILL_CONTAINER)
}
