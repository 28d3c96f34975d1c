import { OPERATIONS } from '../../contract/operations.ts'
import type { SNAPSHOT_OPERATIONS } from '../../contract/snapshots/operations.ts'
import { createSnapshot } from '../../control/snapshots/create-snapshot.ts'
import { deleteSnapshot } from '../../control/snapshots/delete-snapshot.ts'
import { forkSandbox } from '../../control/snapshots/fork-sandbox.ts'
import { getSnapshot, getSnapshotOperation, listSnapshots } from '../../control/snapshots/read-snapshots.ts'
import { asId, type SandboxId, type SnapshotId, type SnapshotOperationId } from '../../domain/ids.ts'
import { renderList, renderObject } from '../../domain/json-text.ts'
import { isName, NAME_RULE } from '../../domain/names.ts'
import { findLabelRefusal } from '../../domain/sandboxes/labels.ts'
import { renderSandbox } from '../../domain/sandboxes/sandbox.ts'
import { refusalProblem } from '../../domain/refusal.ts'
import { isSnapshotName, renderOperation, renderSnapshot, SNAPSHOT_NAME_RULE } from '../../domain/snapshots/snapshot.ts'
import { messageReply, pageInput, refuseField, renderPage, type Handler, type HandlerFactory } from './handler.ts'
import type { CallUseCase } from '../requests/call-use-case.ts'

/** Creates the handlers of snapshots and forks. */
export function makeSnapshotHandlers(
  call: CallUseCase,
  handler: HandlerFactory,
): Record<keyof typeof SNAPSHOT_OPERATIONS, Handler> {
  return {
    create_snapshot: handler(OPERATIONS.create_snapshot, async ({ body }, { caller, attempt }) => {
      const { sandbox_id, name, labels = {}, force = false, record_integrity = false, dest_dir = null } = body
      if (!isSnapshotName(name)) refuseField('name', name, SNAPSHOT_NAME_RULE)
      if (dest_dir !== null) refuseField('dest_dir', dest_dir, 'no dest_dir: snapshots are in managed storage')
      const refusal = findLabelRefusal(labels, 'labels')
      if (refusal !== null) throw refusalProblem(refusal)
      const id = asId<SandboxId>(sandbox_id.toLowerCase())
      const wanted = { sandbox_id: id, name, labels, replaces: force, records_integrity: record_integrity, attempt }
      return renderOperation(await call(createSnapshot, caller, wanted))
    }),
    get_snapshot_operation: handler(OPERATIONS.get_snapshot_operation, async ({ params }, { caller }) => {
      const id = asId<SnapshotOperationId>(params.operation_id.toLowerCase())
      return renderOperation(await call(getSnapshotOperation, caller, id))
    }),
    list_snapshots: handler(OPERATIONS.list_snapshots, async ({ query }, { caller }) =>
      renderPage(await call(listSnapshots, caller, pageInput(query)), renderSnapshot),
    ),
    get_snapshot: handler(OPERATIONS.get_snapshot, async ({ params }, { caller }) =>
      renderSnapshot(await call(getSnapshot, caller, refById(params))),
    ),
    get_snapshot_by_name: handler(OPERATIONS.get_snapshot_by_name, async ({ params }, { caller }) =>
      renderSnapshot(await call(getSnapshot, caller, params)),
    ),
    delete_snapshot: handler(OPERATIONS.delete_snapshot, async ({ params }, { caller }) => {
      await call(deleteSnapshot, caller, refById(params))
      return messageReply('snapshot deleted')
    }),
    delete_snapshot_by_name: handler(OPERATIONS.delete_snapshot_by_name, async ({ params }, { caller }) => {
      await call(deleteSnapshot, caller, params)
      return messageReply('snapshot deleted')
    }),
    fork_sandbox: handler(
      OPERATIONS.fork_sandbox,
      async ({ params, body }, { caller, signal, takeStoredBody: beforeSpec }) => {
        const { count = 1, name = null } = body
        if (name !== null && !isName(`${name}-${String(count)}`)) refuseField('name', name, NAME_RULE)
        const sandbox_id = asId<SandboxId>(params.sandbox_id.toLowerCase())
        const forks = await call(forkSandbox, caller, { sandbox_id, count, name, signal: signal(), beforeSpec })
        return renderObject({}, { data: renderList(forks.map(renderSandbox)) })
      },
    ),
  }
}

function refById({ snapshot_id }: { readonly snapshot_id: string }): { readonly id: SnapshotId } {
  return { id: asId<SnapshotId>(snapshot_id.toLowerCase()) }
}
