import { Type } from 'typebox'
import { PREVIEW_ACCESSES } from '../../domain/previews/preview.ts'
import { PORT_MAX } from '../../domain/requests/request-bounds.ts'
import {
  DateTime,
  int32,
  MessageReply,
  nullable,
  pageOf,
  pageQuery,
  requestObject,
  stringEnum,
  Uuid,
} from '../common.ts'
import { defineOperation, jsonReply, type Operation } from '../operation.ts'
import { SandboxIdParams } from '../sandboxes/sandboxes.ts'

/** Previews: ports of sandboxes that browsers open. */

const port = int32({ minimum: 1, maximum: PORT_MAX, description: 'The port in the sandbox.' })
const access = stringEnum(PREVIEW_ACCESSES, {
  description: '`link`: whoever has the link may open the port. `public`: everybody may.',
})
const expires = Type.Unsafe<string>({ ...DateTime, description: 'When it ends. Null: when it is revoked.' })

export const PreviewReply = Type.Object(
  {
    id: Uuid,
    sandbox_id: Uuid,
    port,
    access,
    expires_at: nullable(expires),
    created_at: DateTime,
    url: Type.String({ description: 'Where the port is. Only the reply to its creation has the secret of a link.' }),
  },
  { title: 'Preview', description: 'A port of a sandbox that is open to others than the keys of the organization.' },
)

const CreatePreviewInput = requestObject(
  { port, access: Type.Optional(access), expires_at: Type.Optional(nullable(expires)) },
  { title: 'CreatePreviewInput', description: 'A port to open. Without `access`, to whoever has the link.' },
)

const PreviewIdParams = requestObject({ sandbox_id: Uuid, preview_id: Uuid })

/** The operations on previews. */
export const PREVIEW_OPERATIONS = {
  create_preview: defineOperation({
    id: 'create_preview',
    method: 'POST',
    path: '/v1/sandboxes/{sandbox_id}/previews',
    tag: 'Previews',
    access: 'write',
    summary: 'Open a port of a sandbox to a link or to everybody',
    params: SandboxIdParams,
    body: CreatePreviewInput,
    reply: jsonReply(PreviewReply, 'The preview, with its link.'),
    problems: ['sandbox_not_found', 'quota_exceeded'],
  }),
  list_previews: defineOperation({
    id: 'list_previews',
    method: 'GET',
    path: '/v1/sandboxes/{sandbox_id}/previews',
    tag: 'Previews',
    summary: 'List the previews of a sandbox, the newest first',
    params: SandboxIdParams,
    query: requestObject(pageQuery),
    reply: jsonReply(pageOf(PreviewReply, 'PreviewPage'), 'A page of previews that have not expired.'),
    problems: ['sandbox_not_found'],
  }),
  revoke_preview: defineOperation({
    id: 'revoke_preview',
    method: 'DELETE',
    path: '/v1/sandboxes/{sandbox_id}/previews/{preview_id}',
    tag: 'Previews',
    access: 'write',
    summary: 'Close a port again',
    description: 'What is open through the preview ends within a second.',
    params: PreviewIdParams,
    reply: jsonReply(MessageReply, 'It is closed.'),
    problems: ['sandbox_not_found', 'preview_not_found'],
  }),
} as const satisfies Record<string, Operation>
