import { Type } from 'typebox'
import { SCOPES } from '../../domain/orgs/caller.ts'
import { NAME_RULE } from '../../domain/sandboxes/names.ts'
import { DateTime, requestObject, stringEnum, nullable, pageOf, Uuid } from '../common.ts'
import { pageQuery } from '../sandboxes/sandboxes.ts'

/** API keys. These routes are the project's own: the published description has none for them. */

const Scopes = Type.Array(stringEnum(SCOPES), {
  minItems: 1,
  uniqueItems: true,
  description:
    '`read` reads; `write` changes sandboxes, volumes and their files and runs commands; `admin` manages keys, credentials and caps. Each includes those before it.',
})

const fields = {
  id: Uuid,
  name: Type.String(),
  scopes: Scopes,
  created_at: DateTime,
  expires_at: nullable(Type.String({ format: 'date-time', description: 'From then on it is refused; null: never.' })),
  last_used_at: nullable(Type.String({ format: 'date-time', description: 'To the minute; null: not yet.' })),
  revoked_at: nullable(Type.String({ format: 'date-time', description: 'When it was ended; null: it was not.' })),
}

export const ApiKeyReply = Type.Object(fields, { title: 'ApiKey', description: 'An API key, without its secret.' })

export const CreatedApiKeyReply = Type.Object(
  { ...fields, key: Type.String({ description: 'The secret. It is in this reply and nowhere else.' }) },
  { title: 'CreatedApiKey', description: 'A new API key with its secret.' },
)

export const ApiKeyPage = pageOf(ApiKeyReply, 'ApiKeyPage')

export const CreateApiKeyInput = requestObject(
  {
    name: Type.String({ description: `${NAME_RULE}.` }),
    scopes: Type.Optional(Scopes),
    expires_at: Type.Optional(
      nullable(Type.String({ format: 'date-time', description: 'In the future; null: never.' })),
    ),
  },
  { title: 'CreateApiKeyInput', description: 'What the key is to be. Without scopes it has all of them.' },
)

export const ApiKeyIdParams = requestObject({ api_key_id: Uuid })
export const ListApiKeysQuery = requestObject(pageQuery)
