import { OPERATIONS } from '../../contract/operations.ts'
import type { PREVIEW_OPERATIONS } from '../../contract/previews/operations.ts'
import { createPreview, listPreviews, revokePreview } from '../../control/previews/previews.ts'
import { asId, type PreviewId, type SandboxId } from '../../domain/ids.ts'
import type { CallUseCase } from '../requests/call-use-case.ts'
import { messageReply, pageInput, parseInstant, renderPage, type Handler, type HandlerFactory } from './handler.ts'

/** Creates the handlers of previews. */
export function makePreviewHandlers(
  call: CallUseCase,
  handler: HandlerFactory,
): Record<keyof typeof PREVIEW_OPERATIONS, Handler> {
  return {
    create_preview: handler(OPERATIONS.create_preview, async ({ params, body }, { caller }) => {
      const { port, access = 'link' } = body
      const expires_at = parseInstant(body.expires_at ?? undefined)
      return JSON.stringify(await call(createPreview, caller, { sandbox_id: idOf(params), port, access, expires_at }))
    }),
    list_previews: handler(OPERATIONS.list_previews, async ({ params, query }, { caller }) => {
      const page = await call(listPreviews, caller, { sandbox_id: idOf(params), ...pageInput(query) })
      return renderPage(page, (preview) => JSON.stringify(preview))
    }),
    revoke_preview: handler(OPERATIONS.revoke_preview, async ({ params }, { caller }) => {
      const id = asId<PreviewId>(params.preview_id.toLowerCase())
      await call(revokePreview, caller, { sandbox_id: idOf(params), id })
      return messageReply('preview revoked')
    }),
  }
}

function idOf({ sandbox_id }: { readonly sandbox_id: string }): SandboxId {
  return asId<SandboxId>(sandbox_id.toLowerCase())
}
