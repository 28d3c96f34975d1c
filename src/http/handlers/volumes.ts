import { OPERATIONS } from '../../contract/operations.ts'
import type { VOLUME_OPERATIONS } from '../../contract/volumes/operations.ts'
import { getVolume, listVolumes } from '../../control/volumes/read-volumes.ts'
import { createVolume } from '../../control/volumes/create-volume.ts'
import { updateVolume } from '../../control/volumes/update-volume.ts'
import { deleteVolume } from '../../control/volumes/delete-volume.ts'
import { asId, type VolumeId } from '../../domain/ids.ts'
import { renderList } from '../../domain/json-text.ts'
import { findLabelRefusal } from '../../domain/sandboxes/labels.ts'
import { refusalProblem } from '../../domain/refusal.ts'
import { isVolumeName, renderVolume, VOLUME_NAME_RULE } from '../../domain/volumes/volume.ts'
import { messageReply, refuseField, taggedReply, type Handler, type HandlerFactory } from './handler.ts'
import type { CallUseCase } from '../requests/call-use-case.ts'

/** Creates the handlers of volumes. */
export function makeVolumeHandlers(
  call: CallUseCase,
  handler: HandlerFactory,
): Record<keyof typeof VOLUME_OPERATIONS, Handler> {
  return {
    list_volumes: handler(OPERATIONS.list_volumes, async (_request, { caller }) => {
      const volumes = await call(listVolumes, caller)
      return renderList(volumes.map(renderVolume))
    }),
    create_volume: handler(OPERATIONS.create_volume, async ({ body }, { caller, attempt }) => {
      const { name, capacity_gib = null } = body
      if (!isVolumeName(name)) refuseField('name', name, VOLUME_NAME_RULE)
      const labels = checkLabels(body.labels ?? {})
      return taggedReply(renderVolume(await call(createVolume, caller, { name, labels, capacity_gib, attempt })))
    }),
    get_default_volume: handler(OPERATIONS.get_default_volume, async (_request, { caller }) =>
      taggedReply(renderVolume(await call(getVolume, caller, 'default'))),
    ),
    get_volume: handler(OPERATIONS.get_volume, async ({ params }, { caller }) =>
      taggedReply(renderVolume(await call(getVolume, caller, { id: volumeIdOf(params) }))),
    ),
    update_volume: handler(OPERATIONS.update_volume, async ({ params, body }, { caller, ifMatch }) => {
      const { capacity_gib, labels } = body
      const change = {
        ifMatch,
        ...(capacity_gib === undefined ? {} : { capacity_gib }),
        ...(labels === undefined || labels === null ? {} : { labels: checkLabels(labels) }),
      }
      return taggedReply(renderVolume(await call(updateVolume, caller, volumeIdOf(params), change)))
    }),
    delete_volume: handler(OPERATIONS.delete_volume, async ({ params }, { caller, ifMatch }) => {
      await call(deleteVolume, caller, volumeIdOf(params), ifMatch)
      return messageReply('volume scheduled for deletion')
    }),
  }
}

function volumeIdOf({ id }: { readonly id: string }): VolumeId {
  return asId<VolumeId>(id.toLowerCase())
}

function checkLabels(labels: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
  const refusal = findLabelRefusal(labels, 'labels')
  if (refusal !== null) throw refusalProblem(refusal)
  return labels
}
