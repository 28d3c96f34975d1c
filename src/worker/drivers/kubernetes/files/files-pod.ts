import { toolCommand } from '../../../../contract/workers/guest-tools.ts'
import { CLAIM_GROUP, volumeLabel, type RunClaim } from '../claim.ts'
import { LABELS } from '../pod.ts'
import { NO_RESOURCES, TOOLBOX_IN_IMAGE } from '../helper-image.ts'
import { affinityOf, CLAIM_SECURITY } from '../spec/pod-claims.ts'
import { commonPodSpec, type PodSettings } from '../spec/pod-spec.ts'

export const FILES_CONTAINER = 'files'
/** Where the volume is in the Pod. */
export const VOLUME_FOLDER = '/volume'

/**
 * Makes the Pod that serves the files of a volume. It satisfies the Pod Security Standard `restricted`, runs nothing of a tenant, and takes
 * nothing of a quota but its number. Like the sandboxes that use the volume, it goes to the node that has it.
 */
export function makeFilesPod(name: string, claim: RunClaim, settings: PodSettings): object {
  const { volume_id } = claim.volume
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name,
      labels: {
        [LABELS.owner]: settings.owner,
        [LABELS.files]: volume_id,
        [volumeLabel(volume_id)]: '',
        [LABELS.network]: 'none', // which no policy opens
      },
    },
    spec: {
      ...commonPodSpec(settings),
      ...affinityOf([claim]),
      terminationGracePeriodSeconds: 1,
      securityContext: {
        runAsNonRoot: true,
        runAsUser: CLAIM_GROUP,
        runAsGroup: CLAIM_GROUP,
        seccompProfile: { type: 'RuntimeDefault' },
        ...CLAIM_SECURITY,
      },
      containers: [
        {
          name: FILES_CONTAINER,
          image: settings.helperImage,
          imagePullPolicy: 'IfNotPresent',
          env: [{ name: 'SANDYARD_VOLUME', value: VOLUME_FOLDER }],
          command: toolCommand('hold.pl', [], TOOLBOX_IN_IMAGE),
          resources: NO_RESOURCES,
          securityContext: {
            allowPrivilegeEscalation: false,
            capabilities: { drop: ['ALL'] },
            readOnlyRootFilesystem: true,
          },
          volumeMounts: [{ name: 'volume', mountPath: VOLUME_FOLDER }],
        },
      ],
      volumes: [{ name: 'volume', persistentVolumeClaim: { claimName: claim.claimName } }],
    },
  }
}
