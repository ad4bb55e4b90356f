/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Published bits: the hash over the inputs of small fixtures of every kind, and the hash of what the reference computes
 * from them. They never change, so a machine, compiler, CPU path or number of threads with other bits is found here
 * without a second machine at hand.
 */
#include "tests/support/check.h"

#include <omp.h>
#include <openssl/sha.h>
#include <unistd.h>

#include "fixtures/fixtures.h"
#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/fma32.h"

/* Routing by the router is truth's, in float64, so not of fixed bits. */
static const char *const routings[] = {"uniform", "skewed", "hot", "half", "holes"};
enum { LAYERS = 2, ROUTINGS = sizeof routings / sizeof *routings };

static const struct gb_shape shape = {5, 320, 96, 6, 2};

static const struct golden {
    enum gb_format format;
    const char *generator;
    const char *inputs[ROUTINGS]; /* fixture->sha256 */
    const char *outputs;          /* of the reference, over layers and routings: intermediate, then output */
    enum gb_format activations;   /* 0: bf16 */
} golden[] = {
    {GB_NVFP4,
     "gaussian/1",
     {"107e99cb0de82aa5e12bfe9cdcb091d77cca77eabaadd118fd024fa61f8642bd",
      "1fb152ca54346727dcb528888c253c878b7a1759847eb2da2a3dd89563f70dde",
      "f496f3463e259839d127313b143fc8cd52763cbc1530fac830c89008643ff208",
      "54599a89c68ea63ab44fd14cea339773b51a82b4a530d596663bd745a6837ebb",
      "0c990f91096edfb68edec30b31c6aea45033fddd7dac1192d6ae8f5a516c101b"},
     "c2b1114fdd1602a8374d6254a0b04c81ac7bd73dc2945b006df5bf18676193b9",
     0},
    {GB_NVFP4,
     "ties/1",
     {"43301215dd54581d77946aff1ff10559c7246aa5b79146f696d02909cfc7bb00",
      "60d2d7899ca3803d5045f6a4bdeed73587f01fa1bd8519b32cd3d971f433ca22",
      "7f0366350de8cf1b65b72de30c894eef5bbe186012e7183f228b371273d525ea",
      "2ee9bb478a28a6f629ac2f443a7859862688e19e88f2fd20b2916018e1785aa4",
      "fb5a5001d721701bec2ca0068e2c570ba58cda99241eb6ee09842e735e59c8bc"},
     "428ad725aba845c1baff980bac917f4dd34b5c49666dd92e993af6120910a262",
     0},
    {GB_NVFP4,
     "edge/1",
     {"4f1f67324e0bc061df04929f62ce60a86b910ecc35ce2baaedf829d68792c228",
      "279b40ceeb7767de73a6ecdb1f7045e4b89099a8279ebcc27b1f33eea058f432",
      "955a9f7118afea652369fbe8bd8e1cfdbaae8d0753c5865b6c5536cc64616e98",
      "185f2b8d03e265ef7a110adb743f729ffe346fa7fc3020dfea4a41f992f1e194",
      "bd8315ffbdfb879b04520a88193047e784cff35c50c4a8e7b419573cca43e502"},
     "39316f5e103bc60a35bac1ad915f43c148c6d9b433442a3946fec2d7eb3e8ba7",
     0},
    {GB_MXFP8,
     "gaussian/1",
     {"21e9d5ec4d4c4a7bb8ffbbabdbbbf49393d33396fcff1ff30273403f1aaab0fb",
      "0b6ec617bc86bb8f2872647fb3e2f44eae19f82d0bb830594f2243a0c903beec",
      "3197716897b73105afe9eba3427e96ff9465331307731168937ba1bf8d9c5f15",
      "4c66c48fa38e939566d565a098d368f86bd019d09d5463e41e37ad1175a293f2",
      "3e52d31e0692d7eea350f8a9f68cd17ed9682361775e55c6bd4cff3b9182b545"},
     "6b1a83dd242033915d38fd471ee1a6e8f8ef8db2f8a2b374a55a5311a391e356",
     0},
    {GB_MXFP8,
     "ties/1",
     {"047f3ca4f140df27091b9f64d12acc60b116a8fd4f45b52a9bb85cbd34646e9c",
      "215223a052fc9c5c079c423be36a60be5f0874b846ad5a606f3d90771a3e72d6",
      "0ea80f642dc40ab15d8ea0966798fa6a9791a8d9bb4474a241cd34d01197cf2d",
      "82dfc88ba5c5a694a1d0a7bb16adfd265d5721d0cc710ff6811791fe3f016770",
      "aff6d0e83c0e7b31f25adf712b28e4ccc500fdabdcc020aa4d3921527b8b3936"},
     "ddfd161264ac130e26f17cb8ecaeaea63ac9d5de6e6aeaef59aad720938c35a2",
     0},
    {GB_MXFP8,
     "edge/1",
     {"e286a993d18da5af997efc62581e8ccf5d2399d3fa03792b6bc16e01c944d238",
      "cb39fa22e71f1ee112a40db7049b9ffe13ffce5c2e8d45e3668c857a949df5bb",
      "5e2e794db046582fbd9ad0ff3813aa9e74a6e65aff79ab290317e64e7c44c990",
      "7869a0c8e6c4967fb6da9d124d0a757647eca92279f5d669a8b07b17498977cc",
      "d7e2c0850ee34807b2e1472da6fd1ba92e727cad290732ce90d35ce2e3cd8f00"},
     "a9be6745ccff913a12cfc5b6a0e122be5143547c729476222b5c1f0c5c010191",
     0},
    {GB_BF16,
     "gaussian/1",
     {"7774876793113673790be1ac6065f92c3f846496f82d20d77d8d7df63ccb66b2",
      "163c198766751f351bfedb73c1b1e1cdf90c6e997706567484499a17787d7dd8",
      "a26114aeb2fe72f7e455b294b752654b93d1ad87e7f9ff8ada45f486be0cfee3",
      "964f2eb6269042c6a8f54d8917ed2e0e67be278f46447e2f616299548b4fde00",
      "396375cb839a004ed7b940a055913de1b80c224d3d7e085d3b72d128d54d8a05"},
     "cd797adde66f67a9b9353e9eddb6562d08287addbd447a3f494f874f5b29092d",
     0},
    {GB_BF16,
     "ties/1",
     {"e0762a967ef1ca332e17fe7785d0fc7a3096308aa1ae1bcab574f9f63804731d",
      "2a8a0e501a4035cc4f5ab1d754e228df0fa37f4326b682cc572d3a751309cd6a",
      "32125c4cbfee8c671883200bc03e08dcdc65798619d51159e396505ac41974c9",
      "c9c94ec9c3bb2c5e483cce51849303d286eaee7de296ccb9e105fa1862806475",
      "98f15a84c878dfeabeccc9c69098517e7c89be2f10f553584a3aa941f15b739e"},
     "5c2b94a8012a9b064a43da2da241b28d569f99cb391380f5e0de86aebab6fccf",
     0},
    {GB_BF16,
     "edge/1",
     {"76a926557f40f77c01ddb9d345f92175a4c697dada76500b3b891189cdf1bc00",
      "6bd08eb72fe728249f5ae014ca6cca2963519801f378d9f1787e3c3ad3bec6f9",
      "67d213330588dec4f911630695e3b336af51eca1146d35dbe3f5625a0d8edc40",
      "e140829429e2b50aac3fee92a47a067bd944916509f91bd9efcc108bfd2eca32",
      "973bf749e58e2ca9c288dac617380728b50d3fd4dce22c174d1bf81629a39ee2"},
     "69bfa5c65d320cf90dac696d7445077a8497eb1b5b5e634827379c050a9e7b71",
     0},
    {GB_NVFP4,
     "exact/1",
     {"99de2a9108c0a470677bd2b5903e42b33602f372cd94a18acef162990f8cb613",
      "6e3d358739b931f3823ea08e1527ed67ed00d86db5383b5fd759eb0d45aa9a68",
      "437c38097f7fde9bbcbc7745cb7fd939dbee4646d09ecffe469fd4afce34337d",
      "801a376e40138cb736367eb28e4d648e5d89cc14a845b5bf66a9bbf40673883f",
      "4d5232631397ec9dc31c1d82d5ff90b1d3112bd13c3ebca7bcd2fbff7d8b692e"},
     "59f9926b4b1383ba0343779a2e2c799be1ac828153e4a84591704333a56db514",
     0},
    {GB_MXFP8,
     "exact/1",
     {"0e4f1cea2fe1ae722d27a339aa47334b10257d825887a6f8c0becac887e441e7",
      "9db4815d9d7e5566fd72541c197cfd02968510c5d72003d90be548619dbf692d",
      "76560119037db9cfea546311c7be93111ed4acc35e96dfd4646d16423d7df57f",
      "1e11a8e5aab1d4d093c18a9c404a463fa18a7d89495ad082aeea2c6f377a6ef6",
      "c33e9eed298d239a00a4ffd5ed455469bef9a2ec1258ee58c9d6e890a0b52532"},
     "3d5a556c6f55e48672a9fc99afc6a33f256f4145db6c7f28b706934bb621038c",
     0},
    {GB_BF16,
     "exact/1",
     {"cc605934e17674570d129bd5b78069d647d3c46ae5102973f813178930f24150",
      "57ae3e086492aaa0e185a59be287ecc62b8f7de06e41fa83c30432c7ba9bd63d",
      "241d886a502b95e9bd5ba0159af6326351ca26d7907bb46dde7c4b1dd8ac1952",
      "7b9300a6b79ce8462db17a85f8a63ce79cf2a25ec584cbccb40b6a501472f428",
      "a449f89c44ec360f1ecb1ea8ae3afb6323d5dd33ecb8b643135f7a871504d789"},
     "baf0da894938bc52b3517e4389b988fe5096696304ada0d3ac11bce2951053e4",
     0},
    {GB_NVFP4,
     "exact/2",
     {"3df3f710d2fb58d178dad74aa6639edaf4053bd50f9d3eb3d03c9e040df6d9ba",
      "0ab8d7bbda16108f8a5689a65097014b6d4e672258847c4402f0a117fd7ec022",
      "93ffb6f102f0a02b23227e189be5a07769e07b8c74739e2887ecbe9c0f5efdc4",
      "090f2c060341a70bc48639bdd4607bb8c77227f226b15f6d7220acd97d7b099f",
      "4a1267dcc2b49cd03c2c557897efaac7c949d1e9c844766cae46bfa164c5a561"},
     "29d0c67152b569361a60be767aac3bda74f265eb5a90c41dd4b72d6470b69b3b",

     GB_NVFP4},
    {GB_MXFP8,
     "exact/2",
     {"e18e201bdc097e2d4325308f38945e5f695287f41b0eb08078698138c7985f61",
      "285d90aa839cc162db7b6d37621ddbd2ef368e57e04e67b19cd0eebf574ed846",
      "f2099710d5601115a1d38ff713f26dc3289a01f764344d525da8711886102244",
      "949c1914c26e4d4992fb471b852097e09cb78d0da35c8d0fd3ba8a6647145b82",
      "910e4a6cb64a4c761e96f2c3804b61a1c986a2e5169078061cbedc6df427e90e"},
     "c7f27e650a29a5934f5a04ceec8c3a3276cf4c3d0405949c425c07a07cf7ddf5",

     GB_MXFP8},
    {GB_MXFP4,
     "exact/2",
     {"c0ac68aca0e78e6d7fd752c64f847c4302676bdbc3458f95b3de703f43e21a63",
      "1b244fa5b976194e51de65b4b96008bb3c29842f7528c911896e128c61b493f9",
      "949b702e431a89ca2389fcc03057b256826c1bfa2e1a0823d5dbaca9eb35742d",
      "70bc670a615de0a1a2d26f3d7de355015cbc36181f71de18e2a1842f03c9d102",
      "46a3b0b64a0fc3db4105a098530f55786e7fb50678983fc616b9f1fd39578617"},
     "866a203c3d5a6ed69fd0f5e20207a984abbebfea60166fbb7f14cdd92185b6ab",

     GB_MXFP8},
    {GB_NVFP4,
     "wide/1",
     {"b307a9337d34831ebbfefcbc531ed3b2e8cc7e6ceb8408603c11d52271364085",
      "801d0d091f242d4c02692975bda1fd59677badeaba65de27aae18ff799fc368e",
      "6dd1c66c9a06f5f20a2ce5bbdee2347ec5f29b38f56ce63ade7fd09d1576cc0c",
      "61cb47f6ac8a85df95a31b5d2c65ca9d7de916b19f4dfb9968f24f2f404207d1",
      "55fcbd693addb55bd85234b249a6a1c2bba428ab47a7f6dab8cd16c7e2292524"},
     "39eed9e1829df30eb105acac0f6c63c62657f2e732ef1e25aee7ce0cd4176fdf",
     0},
    {GB_NVFP4,
     "shared/1",
     {"096274e133a721c9686db644d1f25a6c6312bacb4a6ded240ed211145a3278a1",
      "c2bebf5c8228276f730d9c7fdfbaf398aab9c538b90e0ec6f288784bbcf2b977",
      "2e5ea7b0817a00781e110a3e025e70a94078945727ae01f7d1e7d5bc8e1dea9b",
      "22be7b095e8f5fc069e6e04519763fb5a8b87a73881d6c8fd17aa0965b74cce8",
      "823d06481cb16636412428c4fff0926009771d0119b11a080a2fb98813be263d"},
     "8eac6904422a5ab7927dbc1e898b10ec29f1cc7d0a1c4b860453a3511cd3f3bf",
     0},
    {GB_NVFP4,
     "sparse/1",
     {"eb2bba1f5c3eda8d7bd8d27d6a955a846f874ae923119f2c7954a7b6487bc4f2",
      "513965601c4ff5e970f1ade14a766251a21c8bcdaac190aef4f3a07e89ce09e5",
      "86011ca6a94fa1274fed25a4cf22ff13b74035694cfb46c1ae4d855ed0fb9078",
      "d32f1abdad8748223161f5723a4f60b77ca19272fe36bc67f57a317919063160",
      "075485c07b6acdea70c59d3662c43d20d1f9dbeac06ffee4a07d9336739afe7e"},
     "4c39b419649e235f91d55af7d94c11eb34373da87164293da5c5703739047803",
     0},
    {GB_MXFP4,
     "sparse/1",
     {"27a6485fab008a3f2fc96f735f0b258770971b3562b02de3287a277e71a91941",
      "dcdc64179479a01909bd4b0ba6d410e4acec9b4879eca1736bb484ed05a08252",
      "99e936bd925125ddc96b53f563126bb07c98689fb50e884b46fb8ffd299de90d",
      "1b1e78d1b63937294b2ec19de87f30b35fd524048a6d1eac893f249836eac080",
      "d23ec3ff9403de99303f73055b4249c724fe15ab205adf6bd33216d68837f0da"},
     "8371979f4807b9ae0af19d43546beace59128cec058e4a6ff9355afa5ae90da9",
     0},
    {GB_BF16,
     "sparse/1",
     {"ec5d9595fbc4877f704000bae08b21e5c623c28b42a4b022372f70eae27b29a8",
      "227df417e79479a57a864dd16dee2c479cf885d51d928db1636bf34057f08832",
      "90893d91fc7df9cb82600d0642f67c07decdaf320be285ac746c48b84051e770",
      "f5defb2883d6715d85125c186ead897311de1a689884c70ea727d5b197033e7b",
      "3fbd0fd1bce8511ac29c4af91f4bcbcbda1e7149313f7da3c7528a809252add3"},
     "ca46d8b85ea5c61a678c2dcbff841e5bfb2c28255ac7820fa2be6d535819dcbb",
     0},
    {GB_NVFP4,
     "scales/1",
     {"16657bde1330afbd840d434294faba43adae47c04526d670ba55e0f51861f284",
      "28d401b41fc1432407cdb0886d0686a026693e52ec50f67d6347dac05c8b1848",
      "b35fdcfd7b0cc10d4112ea64cf3c2c4bcad82f5feb9e81c7780b5715330ac01d",
      "0ff1888a554ced28e59bb7933d9922b283a08fdac06a56cb5517da8356a7d587",
      "0b8f8ed7227462e06c2b5115e2e06bcf28a81f2ad154963389fa80fece19dff4"},
     "65cb7f2f5889e54247342a5a3e0d5649db25f98a7aff3755fb4bd24459470ee7",
     0},
    {GB_MXFP8,
     "scales/1",
     {"55945c0fca12565d3bf6c7aa2f9ed45ffaa8cc3da8c1740c88d117650558d4b1",
      "7dbe54dc0276ad584b6722f769737dee521779703f2ef6b579381e48207d2fdc",
      "0492eb2b8684247cc50a6051979bfd32459ae9e411227ebef86d804783dbf885",
      "eae8957732d2d137063cb6df31c0ab90d8aff810b2f850bd7072d6db69e55460",
      "997ebf880aca0259daec6be97aaefd576d06a3a517d200e4d348d037918f39a6"},
     "01f918ae128a2fb9f2d4c950d29262ad9c5d37a84364711dccf4b1618838ca52",
     0},
    {GB_MXFP4,
     "scales/1",
     {"03d136295ec05618e2612e3710da32f1f9b923e9c5e343281d14c40aaf4145d0",
      "113a83c03328c959f42827435df914f0bb06473862a38eda73444274f0261aca",
      "d23c0f2810073feaf279c7767b2663dcd8dbdc0219bd4016987e9f9a0afb4f7b",
      "1a658f2da3145462f4361860b55a6d221225e5e6340067602e93d9c5b37aa325",
      "b8ed731e1ce7d39210cdcf76f056891375fe888cfad863d978980ce79dc790e7"},
     "39864b981da439ba62a90713561f6ef2cd7715d345d1cfdffa60ec4470d45207",
     0},
    {GB_BF16,
     "scales/1",
     {"2e70c977864549f7e8dd9e8c062a982331fc001482f068fb3990733c6d5391fe",
      "90b457025b860920c3e3ed640332029390b08814067605d82edab604f258c7e0",
      "187feb3494624674a2ac1eca2a7029758b5caf7ac0f1978533a03a31e4037794",
      "df057468c67d3d9ab86ef5597b17af62d5f02eacac67673a221dae41d6544d66",
      "49c6f7c3fe588a1972b798a91c30ffa48420732d994aaf0f201c43dffa668971"},
     "c0695f1351737d7ab849ca4fdd3a7be174c08c2b3d0910386fb04dde5e420974",
     0},
};

/* What the reference computes from the layers of all routings; no padding. */
struct outputs {
    gb_bf16 intermediate[5 * 2 * 96]; /* [tokens, top_k, intermediate] */
    float output[5 * 320];            /* [tokens, hidden] */
};

/* As `gaugeblock make --stored` fills it, with the weights of all experts and truth left zero, but for the routing. */
static struct gb_fixture *generate(const struct golden *g)
{
    struct gb_fixture *f;
    assert_int_equal(gb_fixture_new(&shape, LAYERS, g->format, true, false, false, &f, NULL), GB_OK);
    f->norm_topk_prob = true;
    f->rms_norm_epsilon = 0x1p-20;
    f->seed = 20;
    snprintf(f->recipe, sizeof f->recipe, "%s", gb_recipe_default(g->format)->name);
    snprintf(f->contract, sizeof f->contract, "%s.bf16.fma32/1", gb_format_name(g->format));
    snprintf(f->generator, sizeof f->generator, "%s", g->generator);
    if (g->activations)
        assert_int_equal(gb_fixture_quantise_activations(f, g->activations, NULL, NULL), GB_OK);
    for (uint32_t layer = 0; layer < LAYERS && f->layer[layer].activation_scales; layer++) {
        f->layer[layer].activation_scales[0] = 0x1p-6f;
        f->layer[layer].activation_scales[1] = 0x1p18f;
    }
    assert_int_equal(gb_generate_inputs(f, NULL), GB_OK);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t expert = 0; expert < shape.experts; expert++)
            assert_int_equal(gb_generate_expert(f, layer, expert, NULL), GB_OK);
    return f;
}

/* The hash that gb_fixture_write computes. */
static void check_inputs(struct gb_fixture *f, const struct golden *g, unsigned routing, int threads)
{
    char path[] = "golden-XXXXXX";
    struct gb_error error = {""};
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    enum gb_status status = gb_fixture_write(path, f, &error);
    unlink(path);
    assert_string_equal(error.message, "");
    assert_int_equal(status, GB_OK);
    if (strcmp(g->inputs[routing], f->sha256))
        fail_msg("%s, %s, %s, %d threads: inputs %s, but %s is published", gb_format_name(g->format), g->generator,
                 routings[routing], threads, f->sha256, g->inputs[routing]);
}

static void compute(const struct gb_fixture *f, uint32_t layer, struct outputs *o)
{
    struct gb_arguments arguments = gb_layer_arguments(f, layer, shape.tokens);
    memset(o, 0xA5, sizeof *o);
    gb_layer_activations(f, layer, f->activations, &arguments);
    arguments.intermediate = o->intermediate;
    arguments.output = o->output;
    assert_int_equal(fma32_layer(&arguments, NULL), GB_OK);
    for (size_t i = 0; i < sizeof o->output / sizeof *o->output; i++)
        assert_true(isfinite(o->output[i]));
}

/* One row on one CPU path, inputs and outputs on `threads` threads. */
static void check_row(const struct golden *g, enum gb_cpu_path path, int threads)
{
    static struct outputs outputs[ROUTINGS][LAYERS];
    unsigned char digest[SHA256_DIGEST_LENGTH];
    char digits[2 * SHA256_DIGEST_LENGTH + 1];

    omp_set_num_threads(threads);
    assert_int_equal(gb_cpu_path_set(path, NULL), GB_OK);
    struct gb_fixture *f = generate(g);
    for (unsigned r = 0; r < ROUTINGS; r++) {
        assert_int_equal(gb_generate_routing(f, routings[r], NULL), GB_OK);
        check_inputs(f, g, r, threads);
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            compute(f, layer, &outputs[r][layer]);
    }
    gb_fixture_free(f);
    SHA256((const unsigned char *)outputs, sizeof outputs, digest);
    for (int i = 0; i < SHA256_DIGEST_LENGTH; i++)
        snprintf(digits + 2 * i, 3, "%02x", digest[i]);
    if (strcmp(g->outputs, digits))
        fail_msg("%s, %s, path %s, %d threads: outputs %s, but %s is published", gb_format_name(g->format),
                 g->generator, gb_cpu_path_name(path), threads, digits, g->outputs);
}

/* Whether each row is computed on every path; else some are, on one in turn: all generators, formats of weights and
 * formats of activations. */
static bool on_every_path;

static void published_bits(void **state)
{
    size_t paths = 0, rows = 0;
    (void)state;
    for (enum gb_cpu_path path = GB_CPU_PLAIN; gb_cpu_path_name(path); path++)
        paths += gb_cpu_path_available(path);
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        if (!on_every_path && i % 2 && !golden[i].activations && strcmp(golden[i].generator, "wide/1"))
            continue;
        for (enum gb_cpu_path path = GB_CPU_PLAIN; gb_cpu_path_name(path); path++)
            if (gb_cpu_path_available(path) && (on_every_path || (size_t)path == rows % paths))
                check_row(&golden[i], path, 1 + (int)path);
        rows++;
    }
}

/* Routings that take more experts or tokens: the hash of the ids and weights of two layers. */
static const struct {
    const char *routing, *generator;
    struct gb_shape shape;
    const char *sha256;
} routed[] = {
    {"loads", "gaussian/1", {60, 32, 32, 9, 3}, "9a94bb76fcd697cb7a37a8ccb089064262c14193a85f7cee636b49f978205fc6"},
    {"boundary",
     "gaussian/1",
     {20, 16, 16, 65600, 4},
     "04b68db318f22d016ec4f6193300b875d62995c50cfaf5badcc5c7917a7dc5b7"},
    {"equal", "gaussian/1", {20, 32, 32, 8, 3}, "7ccf513b0633a2e4fd768681ed02a8077da6a9f6fb0e89eaf30ebbf86345c48c"},
    {"equal", "exact/1", {20, 32, 32, 8, 3}, "5672ac774f5d858f88c9fe2cc40c57c082f725f5e1a6ae7ed522a51a5e0bf98b"},
};

static void published_routings(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof routed / sizeof *routed; i++) {
        struct gb_fixture *f;
        unsigned char digest[SHA256_DIGEST_LENGTH];
        char digits[2 * SHA256_DIGEST_LENGTH + 1];
        size_t pairs = (size_t)routed[i].shape.tokens * routed[i].shape.top_k;
        assert_int_equal(gb_fixture_new_generated(&routed[i].shape, LAYERS, GB_NVFP4, &f, NULL), GB_OK);
        f->seed = 20;
        snprintf(f->generator, sizeof f->generator, "%s", routed[i].generator);
        assert_int_equal(gb_generate_routing(f, routed[i].routing, NULL), GB_OK);
        uint32_t *words = malloc(LAYERS * 2 * pairs * sizeof *words); /* [layers, ids and weights, tokens, top_k] */
        for (uint32_t l = 0; l < LAYERS; l++) {
            memcpy(words + 2 * l * pairs, f->layer[l].ids, pairs * sizeof *words);
            memcpy(words + (2 * l + 1) * pairs, f->layer[l].routing_weights, pairs * sizeof *words);
        }
        SHA256((const unsigned char *)words, LAYERS * 2 * pairs * sizeof *words, digest);
        free(words);
        for (int d = 0; d < SHA256_DIGEST_LENGTH; d++)
            snprintf(digits + 2 * d, 3, "%02x", digest[d]);
        if (strcmp(routed[i].sha256, digits))
            fail_msg("%s of %s: ids and weights %s, but %s is published", routed[i].routing, routed[i].generator,
                     digits, routed[i].sha256);
        gb_fixture_free(f);
    }
}

int main(int argc, char **argv)
{
    if (sweeps_are_whole(argc, argv))
        on_every_path = true;
    const struct CMUnitTest tests[] = {cmocka_unit_test(published_bits), cmocka_unit_test(published_routings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
