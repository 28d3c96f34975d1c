import { Type } from 'typebox'
import { ROLES } from '../../domain/orgs/caller.ts'
import { DateTime, stringEnum, Uuid } from '../common.ts'

/** The organization of the caller. The published description gives the fields. */
export const OrgReply = Type.Object(
  {
    id: Uuid,
    name: Type.String(),
    slug: Type.String(),
    mfa_required: Type.Boolean({ description: 'Whether its members must sign in with a second factor.' }),
    role: stringEnum(ROLES, { description: 'What the caller may do in it.' }),
    created_at: DateTime,
    updated_at: DateTime,
  },
  { title: 'Org', description: 'The organization that the API key belongs to.' },
)
