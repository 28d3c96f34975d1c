import { toolCommand } from '../../../../contract/workers/guest-tools.ts'
import { StartError } from '../../../start-error.ts'
import { NO_RESOURCES, TOOLBOX_IN_IMAGE } from '../helper-image.ts'
import { literal } from '../literal.ts'
import type { ContainerStatus, Pod } from '../pod.ts'

/** The init container that loads the rules of a Pod's network. */
export const RULES_CONTAINER = 'rules'
/** An argument of a program may have 128 KiB, and its dollar signs are doubled. */
const PIECE_CHARACTERS = 40_000
/** The most that the rules of a Pod may have: etcd stores objects of up to 1.5 MiB. */
const MAX_BYTES = 512 * 1024

/**
 * Makes the container. It must be the first init container: the kubelet starts the next container only after this one
 * has succeeded, and a Pod whose rules can't be loaded fails. It is root with CAP_NET_ADMIN, because a capability of a
 * container reaches no other user. It has no volume, and runs nothing but the helper image.
 */
export function makeRulesContainer(helperImage: string, rules: readonly string[]): object {
  const text = rules.join('\n')
  if (text.length > MAX_BYTES)
    throw new StartError(
      'config',
      `network.policy.rules: on this worker their packet rules may have ${String(MAX_BYTES)} bytes in all`,
    )
  const pieces = text.match(new RegExp(`[^]{1,${String(PIECE_CHARACTERS)}}`, 'g')) ?? []
  return {
    name: RULES_CONTAINER,
    image: helperImage,
    imagePullPolicy: 'IfNotPresent',
    command: toolCommand('rules.pl', pieces, TOOLBOX_IN_IMAGE).map(literal),
    resources: NO_RESOURCES,
    terminationMessagePolicy: 'FallbackToLogsOnError', // so that the worker can say what nft refused
    securityContext: {
      runAsNonRoot: false,
      runAsUser: 0,
      runAsGroup: 0,
      allowPrivilegeEscalation: false,
      capabilities: { drop: ['ALL'], add: ['NET_ADMIN'] },
      readOnlyRootFilesystem: true,
    },
  }
}

/** The state of that container. */
export function rulesStatus({ status }: Pod): ContainerStatus | undefined {
  return status?.initContainerStatuses?.find(({ name }) => name === RULES_CONTAINER)
}
