import { toolCommand } from '../../../../contract/workers/guest-tools.ts'
import { LABELS } from '../pod.ts'
import { NO_RESOURCES, TOOLBOX_IN_IMAGE } from '../helper-image.ts'
import { makeRulesContainer } from './rules-container.ts'

/** The two Pods of a canary: `client` connects to `server`. */
export const CANARY_PARTS = ['server', 'client'] as const
export type CanaryPart = (typeof CANARY_PARTS)[number]

/** Whose canary it is: the id of the worker's data folder, and the namespace that it is in. */
export type CanaryPlace = { readonly owner: string; readonly namespace: string }

export const CANARY_CONTAINER = 'canary'
/** The ports on which both listen. Restricted Pods may listen on those above 1023. */
export const CANARY_PORT = 8080
/** The port that the rules of a canary close. */
export const CLOSED_PORT = 8081
const CANARY_PORTS = [CANARY_PORT, CLOSED_PORT]
/** When the kubelet ends the Pods of a canary whose worker was killed and doesn't return. */
const DEADLINE_SECS = 600
/** Any user but root. The helper image has none. */
const USER = 1000

/** The labels of one Pod of a canary. It has no owner label, so no worker takes it for a sandbox's. */
function labelsOf(owner: string, part: CanaryPart): Readonly<Record<string, string>> {
  return { [LABELS.canary]: owner, [LABELS.canaryPart]: part }
}

/**
 * Makes a Pod of the canary. It takes nothing of a quota but its number, and satisfies the Pod Security Standard
 * `restricted`, unless it has rules.
 */
export function makeCanaryPod(
  { owner }: CanaryPlace,
  part: CanaryPart,
  {
    name,
    image,
    runtimeClass,
    rules = null,
  }: {
    readonly name: string
    readonly image: string
    readonly runtimeClass: string | null
    /** The packet rules that it loads before it listens. Null: none. */
    readonly rules?: readonly string[] | null
  },
): object {
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name, labels: labelsOf(owner, part) },
    spec: {
      restartPolicy: 'Never',
      activeDeadlineSeconds: DEADLINE_SECS,
      terminationGracePeriodSeconds: 1,
      automountServiceAccountToken: false,
      enableServiceLinks: false,
      nodeSelector: { 'kubernetes.io/os': 'linux' },
      ...(runtimeClass === null ? {} : { runtimeClassName: runtimeClass }),
      securityContext: {
        runAsNonRoot: true,
        runAsUser: USER,
        runAsGroup: USER,
        seccompProfile: { type: 'RuntimeDefault' },
      },
      ...(rules === null ? {} : { initContainers: [makeRulesContainer(image, rules)] }),
      containers: [
        {
          name: CANARY_CONTAINER,
          image,
          imagePullPolicy: 'IfNotPresent',
          command: toolCommand('canary.pl', ['listen', ...CANARY_PORTS.map(String)], TOOLBOX_IN_IMAGE),
          resources: NO_RESOURCES,
          securityContext: {
            allowPrivilegeEscalation: false,
            capabilities: { drop: ['ALL'] },
            readOnlyRootFilesystem: true,
          },
        },
      ],
    },
  }
}

/** The command by which a Pod tries to reach an address. */
export function reachCommand(address: string, port: number, limitSecs: number): readonly string[] {
  return toolCommand('canary.pl', ['reach', address, String(port), String(limitSecs)], TOOLBOX_IN_IMAGE)
}

/** The exit code of that command if no connection was accepted. */
export const CLOSED_CODE = 3

export function canaryPolicyName(owner: string, part: CanaryPart): string {
  return `sandyard-canary-${owner.slice(0, 16)}-${part}`
}

/** Makes the policy of a part: all that goes out of the client, or comes into the server, is allowed or denied. */
export function makeCanaryPolicy({ owner }: CanaryPlace, part: CanaryPart, state: 'open' | 'closed'): object {
  const rules = state === 'open' ? [{}] : []
  return {
    apiVersion: 'networking.k8s.io/v1',
    kind: 'NetworkPolicy',
    metadata: { name: canaryPolicyName(owner, part), labels: labelsOf(owner, part) },
    spec: {
      podSelector: { matchLabels: labelsOf(owner, part) },
      ...(part === 'client'
        ? { policyTypes: ['Egress'], egress: rules }
        : { policyTypes: ['Ingress'], ingress: rules }),
    },
  }
}
